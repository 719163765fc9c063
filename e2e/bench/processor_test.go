package bench

import (
	"fmt"
	"os"
	"strings"
)

// processorTime is what the processes have used of the processors so far, in seconds,
// all threads together; 0 where there is no /proc. Where wall time suffers from other
// load, this hardly does.
func processorTime(pids ...int) float64 {
	var ticks int64
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		// The second field is the name, in brackets, and may hold anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var user, system int64
		if _, err := fmt.Sscan(strings.Join(fields[11:13], " "), &user, &system); err != nil {
			return 0
		}
		ticks += user + system
	}
	return float64(ticks) / ticksPerSecond
}

// ticksPerSecond is the unit of /proc, the same on every architecture that Go knows.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const ticksPerSecond = 100
