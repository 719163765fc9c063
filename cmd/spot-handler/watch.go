package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"spot-handler/handler/interruption"
	"spot-handler/imds"
)

// watch says which kinds imds mode looks for.
type watch map[interruption.Kind]*bool

// watchFlags are the switches by kind, in the order of [imds.Kinds].
var watchFlags = map[interruption.Kind]struct{ name, usage string }{
	interruption.SpotInterruption:        {"watch-spot", "look for spot interruption notices"},
	interruption.InstanceTerminating:     {"watch-lifecycle", "look for the end that the Auto Scaling group intends for the instance (target-lifecycle-state)"},
	interruption.RebalanceRecommendation: {"watch-rebalance", "look for rebalance recommendations; --rebalance says what is done on one"},
	interruption.ScheduledEvent:          {"watch-scheduled-events", "look for scheduled events (stop, retirement, reboot, maintenance) and their cancellation"},
}

func (w *watch) define(flags *pflag.FlagSet) {
	*w = watch{}
	for _, kind := range imds.Kinds() {
		f := watchFlags[kind]
		(*w)[kind] = flags.Bool(f.name, true, f.usage)
	}
}

// kinds are those that are switched on.
func (w watch) kinds() (on []interruption.Kind) {
	for _, kind := range imds.Kinds() {
		if w[kind] != nil && *w[kind] {
			on = append(on, kind)
		}
	}
	return on
}

func (w watch) validate() error {
	if len(w.kinds()) > 0 {
		return nil
	}
	var flags []string
	for _, kind := range imds.Kinds() {
		name := watchFlags[kind].name
		flags = append(flags, fmt.Sprintf("--%s (%s)", name, variable(name)))
	}
	return fmt.Errorf("%s: all are false, so there is nothing to look for: want at least one", strings.Join(flags, ", "))
}
