package imdsemu_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/google/go-cmp/cmp"

	"spot-handler/e2e/imdsemu"
)

// start returns a server and the real SDK's client for it, which tries everything once and never falls back to
// IMDSv1.
func start(t *testing.T) (*imdsemu.Server, *imds.Client) {
	t.Helper()
	s := imdsemu.Start(imdsemu.Options{})
	t.Cleanup(s.Close)
	return s, newClient(s)
}

func newClient(s *imdsemu.Server) *imds.Client {
	return imds.New(imds.Options{
		Endpoint: s.URL, EnableFallback: aws.FalseTernary, Retryer: aws.NopRetryer{},
		HTTPClient: &http.Client{Transport: &http.Transport{}}, // no connections shared between tests
	})
}

func get(ctx context.Context, c *imds.Client, path string) (string, error) {
	out, err := c.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	defer out.Content.Close()
	body, err := io.ReadAll(out.Content)
	return string(body), err
}

func status(err error) int {
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		return response.HTTPStatusCode()
	}
	return 0
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("", 3600))
	none := map[string]int{
		imdsemu.InstanceActionPath: 404, imdsemu.RebalancePath: 404, imdsemu.TargetLifecycleStatePath: 404, "no/such/path": 404,
	}
	check := func(want map[string]string, statuses map[string]int) {
		t.Helper()
		for path, text := range want {
			if got, err := get(t.Context(), c, path); err != nil || got != text {
				t.Errorf("%s = %q, %v, want %q", path, got, err, text)
			}
		}
		for path, code := range statuses {
			if got, err := get(t.Context(), c, path); status(err) != code {
				t.Errorf("%s = %q, %v, want status %d", path, got, err, code)
			}
		}
	}
	check(map[string]string{
		"instance-id": "i-0123456789abcdef0", "instance-type": "m5.large", "instance-life-cycle": "spot",
		"placement/availability-zone": "us-east-1a", "placement/region": "us-east-1",
		"events/maintenance/scheduled": "[]", "events/maintenance/history": "[]",
	}, none)

	s.Interrupt("terminate", at)
	s.Rebalance(at)
	s.SetTargetLifecycleState("Terminated")
	s.Schedule(imdsemu.ScheduledEvent{
		Code: "instance-stop", Description: "[Canceled] The instance is running on degraded hardware",
		EventID: "instance-event-0d59937288b749b32", NotBefore: at, NotAfter: at.Add(48 * time.Hour), State: "canceled",
	})
	check(map[string]string{
		"spot/instance-action":               `{"action":"terminate","time":"2026-01-02T02:04:05Z"}`,
		"events/recommendations/rebalance":   `{"noticeTime":"2026-01-02T02:04:05Z"}`,
		"autoscaling/target-lifecycle-state": "Terminated",
	}, nil)
	text, err := get(t.Context(), c, imdsemu.ScheduledEventsPath)
	if err != nil {
		t.Fatal(err)
	}
	var events []map[string]string
	if err := json.Unmarshal([]byte(text), &events); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]map[string]string{{
		"Code": "instance-stop", "Description": "[Canceled] The instance is running on degraded hardware",
		"EventId": "instance-event-0d59937288b749b32", "NotBefore": "2 Jan 2026 02:04:05 GMT",
		"NotAfter": "4 Jan 2026 02:04:05 GMT", "State": "canceled",
	}}, events); diff != "" {
		t.Errorf("scheduled events (-want +got):\n%s", diff)
	}
	s.Clear()
	check(map[string]string{imdsemu.ScheduledEventsPath: "[]", imdsemu.EventHistoryPath: "[]"}, none)

	region, err := c.GetRegion(t.Context(), nil)
	if err != nil || region.Region != "us-east-1" {
		t.Errorf("region = %+v, %v", region, err)
	}
}

// TestEventsMoveToTheHistory ends events as EC2 does: each moves from one list to the other.
func TestEventsMoveToTheHistory(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	at := time.Now().Add(time.Hour)
	list := func(path string) (said []string) {
		t.Helper()
		text, err := get(t.Context(), c, path)
		var events []struct{ EventId, State, Description string }
		if err == nil {
			err = json.Unmarshal([]byte(text), &events)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			said = append(said, e.EventId+" "+e.State+" "+e.Description)
		}
		return said
	}
	want := func(active, over []string) {
		t.Helper()
		if diff := cmp.Diff([][]string{active, over}, [][]string{list(imdsemu.ScheduledEventsPath), list(imdsemu.EventHistoryPath)}); diff != "" {
			t.Errorf("active and history (-want +got):\n%s", diff)
		}
	}
	events := []imdsemu.ScheduledEvent{
		{Code: "instance-stop", EventID: "e-1", NotBefore: at, State: "active", Description: "stop"},
		{Code: "system-reboot", EventID: "e-2", NotBefore: at, State: "active", Description: "reboot"},
	}
	s.Schedule(events...)
	want([]string{"e-1 active stop", "e-2 active reboot"}, nil)
	s.Cancel("e-1")
	want([]string{"e-2 active reboot"}, []string{"e-1 canceled [Canceled] stop"})
	s.Cancel("e-2")
	want(nil, []string{"e-1 canceled [Canceled] stop", "e-2 canceled [Canceled] reboot"})
	s.Schedule(events[1])
	want([]string{"e-2 active reboot"}, nil)
}

func TestConnectionIsKept(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for range 20 {
		if _, err := get(t.Context(), c, imdsemu.InstanceActionPath); status(err) != 404 {
			t.Fatal(err)
		}
	}
	relative, full := s.Requests(imdsemu.InstanceActionPath), s.Requests(imdsemu.MetadataPath+imdsemu.InstanceActionPath)
	if tokens := s.Requests(imdsemu.TokenPath); tokens != 1 || relative != 20 || full != 20 {
		t.Errorf("counted %d requests for tokens, %d by the relative path, %d by the full one, want 1, 20, 20", tokens, relative, full)
	}
	// A slow machine may need one more; a client that does not read the body of a 404 needs one for each.
	if n := s.Connections(); n >= 20/4 {
		t.Errorf("20 polls used %d connections, want 1 or hardly more", n)
	}
}

// TestToken speaks HTTP itself: the SDK would not make a wrong request.
func TestToken(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	put := func(header ...string) (int, string, http.Header) {
		t.Helper()
		return do(t, http.MethodPut, s.URL+imdsemu.TokenPath, header...)
	}
	const ttl = "X-aws-ec2-metadata-token-ttl-seconds"
	for _, test := range []struct {
		name   string
		header []string
		want   int
	}{
		{"no lifetime", nil, 400},
		{"not a number", []string{ttl, "long"}, 400},
		{"no time at all", []string{ttl, "0"}, 400},
		{"more than six hours", []string{ttl, "21601"}, 400},
		{"through a proxy", []string{ttl, "60", "X-Forwarded-For", "10.0.0.1"}, 403},
		{"six hours", []string{ttl, "21600"}, 200},
	} {
		if got, _, header := put(test.header...); got != test.want || got == 200 && header.Get(ttl) != test.header[1] {
			t.Errorf("%s: status %d, lifetime %q", test.name, got, header.Get(ttl))
		}
	}

	url := s.URL + imdsemu.MetadataPath + imdsemu.InstanceIDPath
	const token = "X-aws-ec2-metadata-token"
	check := func(name, value string, want int) {
		t.Helper()
		if got, _, _ := do(t, http.MethodGet, url, token, value); got != want {
			t.Errorf("%s: status %d, want %d", name, got, want)
		}
	}
	if got, _, _ := do(t, http.MethodGet, url); got != 401 {
		t.Errorf("no token: status %d, want 401", got)
	}
	check("unknown token", "x", 401)
	_, long, _ := put(ttl, "60")
	_, short, _ := put(ttl, "2")
	check("new token", short, 200) // at once, while it lives
	time.Sleep(2100 * time.Millisecond)
	check("expired token", short, 401)
	check("longer token", long, 200)
	s.ExpireTokens()
	check("longer token after all expired", long, 401)
}

// TestTokensExpireEarly lets the SDK, with its own retries, meet a service that has forgotten its tokens.
func TestTokensExpireEarly(t *testing.T) {
	t.Parallel()
	s := imdsemu.Start(imdsemu.Options{InstanceID: "i-1"})
	t.Cleanup(s.Close)
	c := imds.New(imds.Options{Endpoint: s.URL, EnableFallback: aws.FalseTernary})
	for range 2 {
		if id, err := get(t.Context(), c, imdsemu.InstanceIDPath); err != nil || id != "i-1" {
			t.Fatalf("instance ID = %q, %v", id, err)
		}
		s.ExpireTokens()
	}
	if n := s.Requests(imdsemu.TokenPath); n != 2 {
		t.Errorf("fetched %d tokens, want 2", n)
	}
}

func do(t *testing.T, method, url string, header ...string) (code int, body string, answer http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

func TestFaults(t *testing.T) {
	t.Parallel()
	wantStatus := func(want int) func(error) bool {
		return func(err error) bool { return status(err) == want }
	}
	for _, test := range []struct {
		name   string
		effect http.HandlerFunc
		is     func(error) bool
	}{
		{"unauthorized", imdsemu.Unauthorized, func(err error) bool {
			// The SDK wraps this one status in an error that does not unwrap.
			return err != nil && strings.Contains(err.Error(), "StatusCode: 401")
		}},
		{"throttled", imdsemu.Throttled, wantStatus(429)},
		{"unavailable", imdsemu.Unavailable, wantStatus(503)},
		{"reset", imdsemu.Reset, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, c := start(t)
			s.Fail(imdsemu.Fault{Effect: test.effect, Action: "spot/"})
			for range 2 {
				if _, err := get(t.Context(), c, imdsemu.InstanceActionPath); !test.is(err) {
					t.Errorf("got error %v", err)
				}
			}
			if _, err := get(t.Context(), c, imdsemu.InstanceIDPath); err != nil {
				t.Errorf("another path: %v", err)
			}
			s.ClearFaults()
			if _, err := get(t.Context(), c, imdsemu.InstanceActionPath); status(err) != 404 {
				t.Errorf("after the fault: got error %v, want 404", err)
			}
		})
	}
}

// givenUp returns a context that ends a while after the server has received another request for the path. The same
// while from now could pass on a slow machine before the request is made.
func givenUp(ctx context.Context, s *imdsemu.Server, path string) context.Context {
	before := s.Requests(path)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for s.Requests(path) == before && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
	}()
	return ctx
}

// TestHopLimit plays a pod behind a hop limit of 1, whose token never arrives.
func TestHopLimit(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.Fail(imdsemu.Fault{Delay: imdsemu.Unanswered, Action: imdsemu.TokenPath})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := get(givenUp(ctx, s, imdsemu.TokenPath), c, imdsemu.InstanceIDPath)
	// The SDK's token error does not unwrap.
	if err == nil || !strings.Contains(err.Error(), "token") || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("got error %v, want one of the token, given up", err)
	}
	if n := s.Requests(imdsemu.InstanceIDPath); n != 0 {
		t.Errorf("%d requests without a token", n)
	}
}
