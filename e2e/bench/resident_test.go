package bench

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"spot-handler/e2e/daemon"
)

// memory is what a process has in RAM, in MiB.
type memory struct {
	// total is all of it: VmRSS, what ps and top show.
	total float64
	// anonymous is the process's own, RssAnon: the rest are pages of the program's file,
	// which the kernel takes back when it needs them, and which daemons on one machine
	// share.
	anonymous float64
}

// sampling is how often the anonymous memory is looked at. The kernel keeps the peak of the
// total only.
const sampling = 20 * time.Millisecond

// residence is what a daemon takes.
type residence struct {
	pid int

	mu   sync.Mutex
	peak memory
}

// watchMemory looks at the daemon's memory until it ends.
func watchMemory(d *daemon.Daemon) *residence {
	r := &residence{pid: d.Pid()}
	go func() {
		for tick := time.NewTicker(sampling); ; {
			select {
			case <-d.Done():
				tick.Stop()
				return
			case <-tick.C:
				_, _ = r.look()
			}
		}
	}()
	return r
}

// look is the memory now, and the peaks so far: of the total since the start, of the
// anonymous memory since it was first looked at.
func (r *residence) look() (now, peak memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid)) // without it, all is as it was
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		var kib float64
		if _, err := fmt.Sscanf(value, "%f kB", &kib); err != nil {
			continue
		}
		switch mib := kib / 1024; name {
		case "VmRSS":
			now.total = mib
		case "RssAnon":
			now.anonymous = mib
		case "VmHWM":
			r.peak.total = max(r.peak.total, mib)
		}
	}
	r.peak.anonymous = max(r.peak.anonymous, now.anonymous)
	return now, r.peak
}

// lookAt looks at several daemons.
func lookAt(all []*residence) (now, peak []memory) {
	for _, r := range all {
		n, p := r.look()
		now, peak = append(now, n), append(peak, p)
	}
	return now, peak
}

// memoryRows are a figure's two rows. A goal of 0 is none.
func memoryRows(what string, goal, goalAnonymous float64, all []memory) []row {
	total := row{what: what, unit: "MiB", goal: goal}
	anonymous := row{what: "  of it anonymous", unit: "MiB", goal: goalAnonymous}
	for _, m := range all {
		total.values = append(total.values, m.total)
		anonymous.values = append(anonymous.values, m.anonymous)
	}
	return []row{total, anonymous}
}

// reportMemory adds a figure to the table.
func reportMemory(what string, goal, goalAnonymous float64, all ...memory) {
	for _, r := range memoryRows(what, goal, goalAnonymous, all) {
		report(r)
	}
}
