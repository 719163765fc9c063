// Package plan reads of a cluster what a forecast is made from, and shows the forecast to people.
//
// It reads with the rights of whoever asks, in pages, and changes nothing. What becomes of the pods
// is decided in [spot-handler/drain/forecast], which knows no cluster.
package plan
