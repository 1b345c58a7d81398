"""What a study does: a file for each stage or pair of stages. Each reads manifests, writes one."""
