package assets

// The programs of EnsureLinters.
const (
	Staticcheck = "staticcheck"
	Actionlint  = "actionlint"
)

var linters = collection{
	module: "e2e/lint/binaries", prefix: "lint-", takes: "a minute",
	flags: func(string) (string, error) { return "-s -w", nil },
	programs: []program{
		{name: Staticcheck, pkg: "honnef.co/go/tools/cmd/staticcheck"},
		{name: Actionlint, pkg: "github.com/rhysd/actionlint/cmd/actionlint"},
	},
}
