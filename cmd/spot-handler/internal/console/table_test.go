package console

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Where not all fits, columns in which there is nothing go first.
func TestTableWithoutWhatSaysNothing(t *testing.T) {
	columns := []Column{{Title: "NODE"}, {Title: "SLACK", Drop: 2}, {Title: "KIND", Drop: 1}, {Title: "LEFT"}}
	rows := [][]Cell{{{Text: "node-a"}, {Text: "-"}, {Text: "notice"}, {Text: "-"}}, {{Text: "node-b"}, {}, {Text: "notice"}, {Text: "-"}}}
	for width, want := range map[int]string{
		0:  "NODE    SLACK  KIND    LEFT",
		27: "NODE    SLACK  KIND    LEFT",
		26: "NODE    KIND    LEFT",
		14: "NODE    LEFT",
	} {
		if got := Table(columns, rows, width)[0]; got != want {
			t.Errorf("%d columns: %q, want %q", width, got, want)
		}
	}
}

func TestTableFits(t *testing.T) {
	columns := []Column{{Title: "NODE"}, {Title: "KIND", Drop: 1}, {Title: "WHY"}}
	rows := [][]Cell{
		{{Text: "node-of-a-long-name"}, {Text: "notice", Colour: Bad}, {Text: "the reason is long"}},
		{{Text: "b"}, {}, {Text: "none"}},
	}
	for width, want := range map[int]string{
		0: `
NODE                 KIND    WHY
node-of-a-long-name  notice  the reason is long
b                            none`,
		47: `
NODE                 KIND    WHY
node-of-a-long-name  ` + Bad.paint("notice") + `  the reason is long
b                            none`,
		46: `
NODE                 WHY
node-of-a-long-name  the reason is long
b                    none`,
		36: `
NODE                 WHY
node-of-a-long-name  the reason is …
b                    none`,
	} {
		if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), strings.Join(Table(columns, rows, width), "\n")); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", width, diff)
		}
	}
}
