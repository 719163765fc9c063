package main

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"spot-handler/cmd/spot-handler/internal/console"
)

// A watch that fails is logged, unless it fails because it was stopped, as a drain's are at its end.
func TestWatchThatIsStoppedIsNoError(t *testing.T) {
	defer newLogger(io.Discard, "info")
	for _, stopped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var lines bytes.Buffer
			newLogger(&lines, "info")
			ctx, stop := context.WithCancel(t.Context())
			watching := make(chan struct{})
			lw := &cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					if !stopped {
						close(watching)
						return nil, errors.New("forbidden")
					}
					return &corev1.PodList{}, nil
				},
				WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (apiwatch.Interface, error) {
					close(watching)
					<-ctx.Done() // stopped before there is an answer
					return nil, ctx.Err()
				},
			}
			_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
				ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, unstreamed{}), ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{},
			})
			ended := make(chan struct{})
			go func() { informer.RunWithContext(ctx); close(ended) }()
			<-watching
			synctest.Wait()
			stop()
			<-ended
			if logged := strings.Contains(lines.String(), "Failed to watch"); logged == stopped {
				t.Errorf("stopped %t: the log has %q", stopped, lines.String())
			}
		})
	}
}

// unstreamed is a client whose lists are not streamed.
type unstreamed struct{}

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// A field of the log is something to search for: each has one name everywhere, and the
// manual's table has them all, and no other.
func TestLogFieldsOfManual(t *testing.T) {
	used := map[string]bool{zerolog.TimestampFieldName: true, zerolog.LevelFieldName: true, zerolog.MessageFieldName: true}
	for _, dir := range []string{"cmd", "handler", "imds", "queue", "drain"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			// Flags are defined by methods of the same names.
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "config.go" {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if field, ok := logField(n); ok {
					used[field] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	documented := map[string]bool{}
	for _, row := range rowsBelow(t, "## Log") {
		for name := range strings.SplitSeq(row[0], ", ") {
			documented[strings.Trim(name, "`")] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("fields of the log (-used +manual):\n%s", diff)
	}
}

// logField is the name that a call gives to a field of a line of the log.
func logField(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	if method.Sel.Name == "Err" && len(call.Args) == 1 {
		return zerolog.ErrorFieldName, true
	}
	methods := []string{"Str", "Strs", "Stringer", "Int", "Int32", "Int64", "Uint64", "Float64", "Bool", "Time", "Dur", "Any", "Interface", "RawJSON", "AnErr"}
	if len(call.Args) != 2 || !slices.Contains(methods, method.Sel.Name) {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	name, err := strconv.Unquote(literal.Value)
	return name, err == nil
}

// Both formats tell the same, the one to programs and the other to people.
func TestLogFormats(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 123_000_000, time.UTC)
	now := zerolog.TimestampFunc
	zerolog.TimestampFunc = func() time.Time { return at }
	defer func() { zerolog.TimestampFunc = now }()
	local := time.Local
	time.Local = time.UTC
	defer func() { time.Local = local }()

	for name, tt := range map[string]struct {
		format func(io.Writer) io.Writer
		want   string
	}{
		"JSON":       {func(w io.Writer) io.Writer { return w }, `{"level":"info","component":"handler","left":2,"reason":"the budget","node":"node-1","deadline":"2026-01-01T12:00:00.123Z","time":"2026-01-01T12:00:00.123Z","message":"deadline reached"}` + "\n"},
		"for people": {forPeople, "12:00:00.123 INF deadline reached component=handler node=node-1 deadline=2026-01-01T12:00:00.123Z reason=\"the budget\" left=2\n"},
	} {
		out := &buffer{}
		logger := newLogger(tt.format(out), "info")
		part := part(logger, "handler")
		part.Debug().Msg("not shown")
		part.Info().Int("left", 2).Str("reason", "the budget").Str("node", "node-1").Time("deadline", at).Msg("deadline reached")
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Lines of JSON and those for people go by the program's one output, which has no control
// characters; and nobody writes past it.
func TestNothingIsWrittenPastTheOutput(t *testing.T) {
	for name, format := range map[string]func(io.Writer) io.Writer{"JSON": func(w io.Writer) io.Writer { return w }, "for people": forPeople} {
		var out strings.Builder
		logger := newLogger(format(console.NewOutput(&out)), "info")
		logger.Info().Str("reason", "\x1b]0;owned\a\u009b31m\u202e").Strs("pod", []string{"\u009b2J"}).Msg("evicted \x1b[2J\u2066")
		if !strings.Contains(out.String(), "evicted") || strings.ContainsFunc(out.String(), console.Controls) {
			t.Errorf("%s: %q", name, &out)
		}
	}
	for _, dir := range []string{"cmd", "handler", "imds", "queue", "drain"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || path == filepath.Join("..", "..", "cmd", "spot-handler", "main.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, past := range []string{"os.Stdout", "os.Stderr", "fmt.Print"} {
				if strings.Contains(string(text), past) {
					t.Errorf("%s writes with %s, past the output", path, past)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
