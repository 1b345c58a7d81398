"""What flows do: stages, by their subject. Each reads manifests, and writes one."""
