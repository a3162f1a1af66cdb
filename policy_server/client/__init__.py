"""Help for programs that ask the server: messages from rows and back, and what to do with an answer."""
