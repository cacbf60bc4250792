"""vLLM: the plugin that registers our models, and the backend that runs them."""
