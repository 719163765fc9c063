// Package plan says which nodes of a cluster are lost, and shows people what would become of their
// pods. That is decided in [spot-handler/drain/forecast], which knows no cluster.
package plan
