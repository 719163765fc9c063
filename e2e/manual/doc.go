// Package manual has tests only: they play the manual, as somebody would who follows it.
//
// Every fenced block of the documents is played, page after page. A shell block runs command by
// command, in a shell for each page, against a real control plane on which the front page's command
// installs the chart: kwok plays the kubelets, so eight pods of the DaemonSet and two of the
// Deployment are Ready, and a process of its own does what the leader does. YAML goes through the API
// server's dry run or through the chart; JSON, TOML and Python are read by their own parsers, and
// Python that can run does.
//
// What cannot run here, or needs to be said to be judged, has an entry in the [list]: the reason, what
// runs in its place, what it must print. A block of a kind that nothing here can read, and an entry
// that no block matches, fail the test.
package manual
