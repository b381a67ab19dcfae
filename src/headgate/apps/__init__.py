"""Complete small products on top of the gateway: ordinary users of what `import headgate` offers."""
