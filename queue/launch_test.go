package queue

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// Instances that start, by the thousand, do not hold up the notice of one that ends; they
// are bounded too, and what is beyond is left to the queue.
func TestLaunchHooksHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, err := os.ReadFile("testdata/lifecycle_launch.json")
		if err != nil {
			t.Fatal(err)
		}
		var launching sync.Map
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.Hook == nil {
				return interruption.Accepted, nil
			}
			launching.Store(n.InstanceID, true)
			return "", interruption.ErrNotYet
		}}
		f := &fakeClient{}
		start(t, Options{Client: f, Accepter: a})
		for i := range maxLaunching + 500 {
			text := strings.NewReplacer("i-1234567890abcdef0", fmt.Sprintf("i-%017x", i), "2026-01-01T00:00:00Z", time.Now().UTC().Format(time.RFC3339)).Replace(string(body))
			f.send("launch", text, 1)
		}
		f.send("spot", spotBody("i-1", time.Now()), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-spot"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		n := 0
		launching.Range(func(any, any) bool { n++; return true })
		if n != maxLaunching {
			t.Errorf("%d launches are waited for, want %d", n, maxLaunching)
		}
	})
}
