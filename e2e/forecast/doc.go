// Package forecast holds `spot-handler plan` to what then happens: random clusters on the real
// control plane are asked for a forecast, their nodes are interrupted, and each pod's end is
// compared with the forecast.
package forecast
