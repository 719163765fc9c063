// Package interruption holds the words that every other package of spot-handler shares: the
// Notice that a source delivers, the Kind of interruption it announces, and the Record kept on
// the Node.
//
// Everything here is plain data. There are no clients, no clocks and no configuration. Nothing
// blocks. All functions are pure: they are safe for concurrent use and return new values
// instead of changing their arguments.
package interruption
