package controlplane

// KillSupervisor does what a user with kill -9 does, or the kernel when out of memory.
func (c *Cluster) KillSupervisor() error { return c.supervisor.Process.Kill() }
