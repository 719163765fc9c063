package assets

// NodeTerminationHandler is the program of EnsureHandler.
const NodeTerminationHandler = "node-termination-handler"

var handler = collection{
	module: "e2e/foreign/binaries", prefix: "handler-", takes: "2 minutes",
	flags:    func(string) (string, error) { return "-s -w", nil },
	programs: []program{{name: NodeTerminationHandler, pkg: "github.com/aws/aws-node-termination-handler/cmd"}},
}
