package offerings

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/handler/interruption"
)

const (
	// ConfigMap is the name of the object that holds the memory, under dataKey. The chart creates it,
	// empty, so it is removed with the chart's other objects.
	ConfigMap = "spot-handler-offerings"
	dataKey   = "offerings.json"

	// maxText bounds, in bytes, what is read back: maxLosses with the longest names take less.
	maxText = 512 << 10

	// A loss is written after burst, with those that come meanwhile, but not within pause of the last
	// write. Node-hours need not be as fresh: they are written every hoursEvery.
	burst      = 5 * time.Second
	pause      = time.Minute
	hoursEvery = 20 * time.Minute

	// countEvery is how often the nodes that stand are counted, in memory.
	countEvery = 5 * time.Minute
)

// ConfigMaps is the subset of the ConfigMaps API of one namespace that keeps the memory.
type ConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.ConfigMap, error)
}

// configMap keeps a memory in the ConfigMap.
type configMap struct {
	*Memory
	client  ConfigMaps
	logger  zerolog.Logger
	loaded  bool   // what an earlier process has left has been read
	changed bool   // there is something to write
	said    string // the last error that was logged
}

// Keep adds what an earlier leader has left to the memory, and writes what is new, until ctx ends. Its
// error is always nil: where the ConfigMap cannot be used, that is logged once, and the memory dies
// with the process. All returns the nodes of the cluster. Only one process should run it.
func (m *Memory) Keep(ctx context.Context, client ConfigMaps, all func() []*corev1.Node, logger zerolog.Logger) error {
	m.mu.Lock()
	m.all = all
	m.mu.Unlock()
	k := &configMap{Memory: m, client: client, logger: logger}
	next := time.Now().Add(k.sync(ctx))
	counted := time.After(0)
	var wrote time.Time
	hoursWritten := time.Now()
	for {
		select {
		case <-counted:
			m.recount(standing(all()))
			counted = time.After(countEvery)
			continue
		case <-ctx.Done():
			return nil
		case <-m.news:
			k.changed = true
			next = interruption.Earlier(next, interruption.Later(time.Now().Add(burst), wrote.Add(pause)))
			continue
		case <-time.After(time.Until(next)):
		}
		now := time.Now()
		if now.Sub(hoursWritten) >= hoursEvery {
			hoursWritten = now
			k.changed = true
		}
		if k.changed {
			wrote = now
		}
		next = now.Add(k.sync(ctx))
	}
}

// sync reads the ConfigMap once, and writes what is new. It returns after how long to come again if
// nothing happens before.
func (k *configMap) sync(ctx context.Context) time.Duration {
	bounded, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	err := k.read(bounded)
	k.mu.Lock()
	// Until it is known what has been counted, nothing is: the records on the Nodes are visited again.
	k.counts = k.counts || err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
	// After Lately a notice is not counted, so it cannot be counted twice.
	maps.DeleteFunc(k.counted, func(_ string, at time.Time) bool { return time.Since(at) >= Lately })
	k.mu.Unlock()
	if err == nil && k.changed {
		err = k.write(bounded)
	}
	if err == nil {
		k.said = ""
		return hoursEvery
	}
	if err.Error() != k.said && ctx.Err() == nil {
		k.said = err.Error()
		k.logger.Warn().Err(err).Msg("lost offerings are remembered by this process alone; the chart creates the ConfigMap, " +
			"and the permissions to read and write it")
	}
	return pause
}

func (k *configMap) read(ctx context.Context) error {
	if k.loaded {
		return nil
	}
	held, err := k.client.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read lost offerings: %w", err)
	}
	k.loaded = true
	text := held.Data[dataKey]
	if text == "" {
		return nil
	}
	n, err := k.load(text)
	if err != nil {
		k.logger.Error().Str("error", interruption.Clip(err.Error())).
			Msg("ConfigMap of lost offerings is malformed: the next loss replaces its content")
		return nil
	}
	k.logger.Info().Int("offerings", n).Msg("lost offerings are known")
	return nil
}

// write replaces the memory, and leaves all else in the ConfigMap as it is.
func (k *configMap) write(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"data": map[string]string{dataKey: k.text()}})
	if err == nil {
		_, err = k.client.Patch(ctx, ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("write lost offerings: %w", err)
	}
	k.changed = false
	return nil
}

// Read returns what a leader has kept in the ConfigMap; nothing if there is none. These are all nodes.
// An error is fit to be shown.
func Read(ctx context.Context, client ConfigMaps, of []*corev1.Node) (*Memory, error) {
	m := New()
	m.all = func() []*corev1.Node { return of }
	held, err := client.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err == nil && held.Data[dataKey] != "" {
		_, err = m.load(held.Data[dataKey])
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return m, fmt.Errorf("read lost offerings: %s", interruption.Clip(err.Error()))
	}
	return m, nil
}

// LastDay are the offerings about which a notice or a recommendation came within a day, the last
// first, with rounded numbers.
func (m *Memory) LastDay() []Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	var list []Entry
	for of, t := range m.of {
		if time.Since(t.Last) >= 24*time.Hour {
			continue
		}
		list = append(list, Entry{Loss: of, tally: tally{Lost: tenths(t.Lost), Hours: tenths(t.Hours), Last: t.Last}})
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Or(b.Last.Compare(a.Last), compare(a.Loss, b.Loss)) })
	return list
}

func tenths(n float64) float64 { return math.Round(10*n) / 10 }

// stored is the memory as text. Each write replaces all of it: fields that only another version knows
// are ignored, and lost.
type stored struct {
	At        time.Time `json:"at"`
	Offerings []Entry   `json:"offerings"`
}

// An Entry is what a pool has had of an offering.
type Entry struct {
	Loss
	tally
}

// check reports what of the entry this program cannot have written.
func (e Entry) check() error {
	for _, name := range []string{e.Type, e.Zone, e.Pool} {
		if len(validation.IsValidLabelValue(name)) > 0 {
			return fmt.Errorf("%.64q is no value of a label", name)
		}
	}
	few, many := min(e.Lost, e.Hours), max(e.Lost, e.Hours)
	for _, n := range e.Recent {
		few, many = min(few, float64(n)), max(many, float64(n))
	}
	if e.Type == "" || e.Zone == "" || few < 0 || many > 1e9 {
		return fmt.Errorf("offering %q in %q: want numbers from 0 to 1e9, got %g to %g", e.Type, e.Zone, few, many)
	}
	return nil
}

// text is the memory as of now.
func (m *Memory) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	s := stored{At: m.at.UTC()}
	for _, of := range slices.SortedFunc(maps.Keys(m.of), compare) {
		s.Offerings = append(s.Offerings, Entry{Loss: of, tally: *m.of[of]})
	}
	text, _ := json.Marshal(s) // texts and finite numbers
	return string(text)
}

// load adds to the memory what text has written in another process. Anybody might have edited it who
// may write ConfigMaps in the namespace, so an error leaves the memory as it is.
func (m *Memory) load(text string) (offerings int, err error) {
	if len(text) > maxText {
		return 0, fmt.Errorf("%d bytes, want at most %d", len(text), maxText)
	}
	var s stored
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return 0, err
	}
	if len(s.Offerings) > maxLosses {
		return 0, fmt.Errorf("%d offerings, want at most %d", len(s.Offerings), maxLosses)
	}
	left := &Memory{of: map[Loss]*tally{}, at: s.At}
	for _, e := range s.Offerings {
		if err := e.check(); err != nil {
			return 0, err
		}
		if e.Last.After(time.Now()) {
			e.Last = time.Now()
		}
		left.of[e.Loss] = &e.tally
	}
	left.fade()

	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	for of, l := range left.of {
		t := m.tally(of)
		t.Lost += l.Lost
		t.Hours += l.Hours
		t.Last = interruption.Later(t.Last, l.Last)
		t.known = l.Last
		for at, n := range l.Recent {
			t.Recent[at] += n
		}
	}
	m.shrink()
	return len(left.of), nil
}
