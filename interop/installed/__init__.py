"""Programs of other projects that people have installed, with a proxy that wants a user name and a token."""
