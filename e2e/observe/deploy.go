package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

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
