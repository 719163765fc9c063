package stories

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// An API server has few places left for service accounts, and evictions of ours that hang take
// them all: whatever else the account asks for waits. Leases and cordons do not, by the chart's
// FlowSchemas: the leader leads on, and notices of other nodes are recorded at once.
func TestLeasesAndCordonsPassHangingEvictions(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	s.accounts(inBothModes)
	s.narrow("workload-low")
	s.flowsOf(queueAccount, map[string]string{"get leases": "spot-handler-leases", "get nodes": "spot-handler-nodes", "list pods": "service-accounts"})

	interrupted := s.bare("node", 1, 8)[0]
	slow := s.service("slow", 40, func(d *controlplane.DeploymentSpec) { quick(d); d.CPU, d.MaxSurge = "200m", never })
	others := s.bare("other", 20, 8)
	hook := s.hangingWebhook("request.name.startsWith('slow-')")
	s.eventually("hanging of evictions", func() bool {
		_ = s.evictionWouldBe(slow[0].Name)
		asked, _ := hook.seen()
		return asked > 0
	})
	hook.forget()
	server, queue := s.sqs()
	leader := s.runReplica(server, queue)
	s.waitLine(leader, "leading")

	interrupt(queue, interrupted.Name, 100*time.Second)
	deputy := s.person(queueAccount, "")
	s.eventually("requests of the account that wait", func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		_, err := deputy.CoreV1().Pods("default").List(ctx, metav1.ListOptions{Limit: 1})
		return err != nil && ctx.Err() != nil
	})
	began := time.Now()
	for _, node := range others {
		interrupt(queue, node.Name, 110*time.Second)
	}
	for _, node := range others {
		s.waitRecord(node.Name, func(interruption.Record) bool { return true })
	}
	cordoned := time.Since(began)
	// As long as a lease lives, and some more, the places stay taken.
	s.within("renewals of the lease", time.Minute, func() bool { return len(s.answered("update", "leases", began)) >= 10 },
		func() string { return fmt.Sprint(len(s.answered("update", "leases", began)), " of 10") })
	worst := map[string]time.Duration{}
	for what, requests := range map[string][]request{"lease": s.answered("update", "leases", began), "cordon": s.answered("patch", "nodes", began)} {
		for _, r := range requests {
			worst[what] = max(worst[what], r.StageTimestamp.Sub(r.RequestReceivedTimestamp))
		}
	}
	t.Logf("%d nodes cordoned in %s; the slowest requests: %v", len(others), cordoned, worst)
	if cordoned > 10*time.Second || worst["lease"] > 2*time.Second || worst["cordon"] > 2*time.Second {
		t.Error("want leases and cordons to pass what waits")
	}
	if n := s.metric(leader, "spot_handler_leader"); n != 1 {
		t.Error("the leader leads no more")
	}
	hook.answer()
	s.waitRecord(interrupted.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
}

// narrow leaves a level of the API server's priority and fairness a handful of places, and lets it
// borrow none.
func (s *story) narrow(level string) {
	s.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"false"}},"spec":{"limited":{"nominalConcurrencyShares":1,"borrowingLimitPercent":0}}}`,
		flowcontrolv1.AutoUpdateAnnotationKey)
	_, err := s.cluster.Client.FlowcontrolV1().PriorityLevelConfigurations().Patch(s.ctx, level, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// flowsOf waits until requests of the account are matched by the FlowSchemas, as the API
// server says itself in each answer.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#observability
func (s *story) flowsOf(account string, want map[string]string) {
	s.Helper()
	config, err := s.cluster.ServiceAccountConfig(s.ctx, namespace, account, "")
	s.must(err)
	var matched string
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if err == nil {
				matched = answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
			}
			return answer, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	requests := map[string]func(){
		"get leases": func() {
			_, _ = client.CoordinationV1().Leases(namespace).Get(s.ctx, "spot-handler", metav1.GetOptions{})
		},
		"get nodes": func() { _, _ = client.CoreV1().Nodes().Get(s.ctx, "none", metav1.GetOptions{}) },
		"list pods": func() { _, _ = client.CoreV1().Pods("").List(s.ctx, metav1.ListOptions{Limit: 1}) },
	}
	for what, name := range want {
		schema, err := s.cluster.Client.FlowcontrolV1().FlowSchemas().Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		s.within(what+" by FlowSchema "+name, time.Minute, func() bool {
			requests[what]()
			return matched == string(schema.UID)
		}, func() string { return fmt.Sprintf("the API server matches %s, not %s", matched, schema.UID) })
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answered are the daemons' requests since a time that the API server has granted.
func (s *story) answered(verb, resource string, since time.Time) []request {
	s.Helper()
	return s.requests(func(r request) bool {
		return r.Verb == verb && r.ObjectRef.Resource == resource && r.ObjectRef.Subresource == "" && r.ResponseStatus.Code == http.StatusOK && r.RequestReceivedTimestamp.After(since)
	})
}
