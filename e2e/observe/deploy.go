package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// Rule is an alert of deploy/alerts.
type Rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// Rules reads the alerts of a file of rules, in their order.
func Rules(file string) ([]Rule, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rules struct{ Groups []struct{ Rules []Rule } }
	if err := yaml.Unmarshal(text, &rules); err != nil {
		return nil, fmt.Errorf("read rules of %s: %w", file, err)
	}
	var all []Rule
	for _, g := range rules.Groups {
		all = append(all, g.Rules...)
	}
	return all, nil
}

// Panel is a panel of the dashboard.
type Panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               Datasource
	GridPos                  struct{ H, W, X, Y int }
	Targets                  []struct {
		RefID, Expr string
		Datasource  Datasource
	}
}

// Datasource is Grafana's reference to a data source.
type Datasource struct{ Type, UID string }

// Dashboard is the part of a Grafana dashboard that the tests look at.
type Dashboard struct {
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, AllValue string }
	}
	Panels []Panel
}

// ReadDashboard reads the JSON of a dashboard.
func ReadDashboard(file string) (Dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Dashboard{}, err
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return Dashboard{}, fmt.Errorf("read dashboard %s: %w", file, err)
	}
	return d, nil
}

// Resolve puts values for the variables into a query, as Grafana does: all clusters, and
// for $__rate_interval and $__range what Grafana makes of a scrape every second and a
// dashboard of the last ten minutes.
func Resolve(expr string) string {
	return strings.NewReplacer("$cluster", ".*", "$__rate_interval", "1m", "$__range", "10m").Replace(expr)
}
