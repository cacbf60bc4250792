"""Tasks whose problems are generated: their prompts and solutions, and how attempts are graded."""
