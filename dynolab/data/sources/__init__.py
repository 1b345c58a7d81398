"""Where rows come from: settings, readers of formats, and loading."""
