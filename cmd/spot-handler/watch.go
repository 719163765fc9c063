package main

import (
	"fmt"
	"slices"
	"strings"

	"spot-handler/handler/interruption"
	"spot-handler/imds"
)

// watched are the values of --watch.
var watched = map[string]interruption.Kind{
	"spot":             interruption.SpotInterruption,
	"lifecycle":        interruption.InstanceTerminating,
	"rebalance":        interruption.RebalanceRecommendation,
	"scheduled-events": interruption.ScheduledEvent,
}

// watchable are the names of watched, in the order of [imds.Kinds].
func watchable() (names []string) {
	for _, kind := range imds.Kinds() {
		for name, k := range watched {
			if k == kind {
				names = append(names, name)
			}
		}
	}
	return names
}

// kindsOf are the kinds of these values, in the order of [imds.Kinds].
func kindsOf(names []string) (kinds []interruption.Kind, err error) {
	for _, name := range names {
		if _, ok := watched[name]; !ok {
			return nil, fmt.Errorf("%q: want some of %s", name, strings.Join(watchable(), ", "))
		}
	}
	for _, name := range watchable() {
		if slices.Contains(names, name) {
			kinds = append(kinds, watched[name])
		}
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("empty, so nothing is polled: want some of %s", strings.Join(watchable(), ", "))
	}
	return kinds, nil
}
