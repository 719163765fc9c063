package controlplane

// KillSupervisor is what a user with kill -9, or the kernel out of memory, does.
func (c *Cluster) KillSupervisor() error { return c.supervisor.Process.Kill() }
