// Package interruption holds the words that every other package of spot-handler shares: the
// Notice that a source delivers, the Kind of interruption it announces, and the Record kept on
// the Node.
//
// Everything here is plain data. There are no clients and no configuration. Nothing blocks. All
// functions are safe for concurrent use and return new values instead of changing their arguments;
// none reads a clock, except to tell the log how much time is left.
package interruption
