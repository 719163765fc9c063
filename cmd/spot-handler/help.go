package main

import (
	"fmt"
	"strings"
)

const overview = `spot-handler gets workloads off spot instances before EC2 takes them: cordon,
replacement capacity from the fallback pool, drain within the deadline.

Usage:
  spot-handler imds  [flags]   on every spot node, as a DaemonSet: watches the
                               instance metadata service, and drains this node
  spot-handler queue [flags]   once per cluster, as a Deployment: consumes the SQS
                               queue that EventBridge feeds, and drains every node
  spot-handler migrate [FILE]  reads the settings of aws-node-termination-handler and
                               prints those of spot-handler
  spot-handler --version

"spot-handler imds --help" and "spot-handler queue --help" list the flags.
`

var modeHelp = map[string]string{
	modeIMDS: `Watches this node's instance metadata service. On a notice: cordons the node,
requests a replacement, and drains the node before EC2 takes it.

Usage:
  spot-handler imds --node-name=NAME [flags]

The metadata service answers a pod only with hostNetwork, or with a hop limit of 2
on the instance. AWS_EC2_METADATA_SERVICE_ENDPOINT points elsewhere.
`,
	modeQueue: `Consumes the SQS queue that EventBridge feeds with the notices of all instances. On
a notice for one of this cluster: cordons its node, requests a replacement, and drains
the node before EC2 takes it.

Usage:
  spot-handler queue --queue-url=URL [flags]

Region, credentials and endpoints come from the AWS SDK's variables: AWS_REGION,
AWS_ENDPOINT_URL_SQS and so on.
`,
}

// helpWidth fits the usual terminal.
const helpWidth = 100

// help is the text of --help.
func help(mode string, groups []group) string {
	var b strings.Builder
	b.WriteString(modeHelp[mode])
	for _, g := range groups {
		g.SortFlags = false
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(helpWidth))
	}
	fmt.Fprintf(&b, "\nEvery flag can be given as a variable: --dry-run is %s.\nA flag goes before its variable.\n", variable("dry-run"))
	return b.String()
}
