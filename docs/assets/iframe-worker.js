// Lets the site's search run where it is opened from the disk, where browsers start no worker.
// The script of the worker runs in a hidden frame, which is sent its messages and sends its own.
(() => {
  if (location.protocol !== "file:") return;
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      addEventListener("message", ({ source, data }) => {
        if (source === this.inside) this.dispatchEvent(new MessageEvent("message", { data }));
      });
      const start = "postMessage = (data) => parent.postMessage(data, '*')";
      this.inside.document.write(`<script>${start}<\/script><script src="${url}"><\/script>`);
      this.inside.document.close();
      this.isReady = new Promise((ready) => this.inside.addEventListener("load", ready));
    }
    postMessage(data) {
      this.isReady.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
})();
