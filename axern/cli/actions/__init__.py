"""What the commands do, apart from how they are spelled; nothing here imports typer."""
