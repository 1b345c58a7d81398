"""What a study does: one file per stage. Each reads manifests and writes one."""
