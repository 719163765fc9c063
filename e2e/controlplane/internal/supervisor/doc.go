// Package supervisor runs the processes of one control plane on the loopback interface,
// and makes sure that none of them outlives it.
//
// There are three layers, because tests panic, are interrupted and are killed:
//
//   - An orderly end (the context is canceled, a component dies) kills every
//     component and removes the directory.
//   - On Linux, the kernel kills the components when the supervisor itself is
//     killed: each has a parent-death signal.
//   - The directory of a supervisor that was killed is removed by the next one
//     that starts: whoever lives holds a lock on a file in its directory.
package supervisor
