"""From text to blocks of tokens: sources of documents, tokenizers, prepared files, blocks."""
