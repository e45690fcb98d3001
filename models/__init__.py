"""The demo model pair (Hugging Face format) and the script that trains it."""
