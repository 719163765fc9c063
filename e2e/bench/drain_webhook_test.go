package bench

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
)

const (
	webhookNodes = 20 // of evictedPerNode pods
	webhookDelay = 400 * time.Millisecond
	webhookGoal  = 1.5
)

// BenchmarkSlowWebhook has 400 pods leave 20 nodes while an admission webhook takes 400 ms for each
// eviction: under one PDB that lets all of them go, beside the same without a PDB.
func BenchmarkSlowWebhook(b *testing.B) {
	for b.Loop() {
		measureSlowWebhook(b)
	}
}

func measureSlowWebhook(b *testing.B) {
	cluster := controlplane.ForTest(b, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	client, err := evictor(cluster)
	must(b, err)
	f := &exodus{B: b, cluster: cluster, client: client}
	f.round("warm-up", webhookNodes, exit{"raw", rawAgent, f.raw})
	f.slowWebhook()
	ours := exit{"daemon", "spot-handler/", f.daemon}
	without := f.round("without", webhookNodes, ours)
	f.budgets = 1
	with := f.round("with", webhookNodes, ours)
	seconds := func(d departure) float64 { return webhookNodes * evictedPerNode / d.rate }
	what := fmt.Sprintf("%d pods under one PDB with room for all, a webhook of %s: ", webhookNodes*evictedPerNode, webhookDelay)
	report(row{
		what: what + "evicted within", unit: "s",
		values: []float64{seconds(with)}, limit: []float64{seconds(without)}, goal: webhookGoal, ofLimit: true,
	})
	report(row{what: what + "evictions not granted at first", values: []float64{float64(with.refused)}, limit: []float64{float64(without.refused)}})
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(seconds(with), "s")
	b.ReportMetric(seconds(without), "s-without")
}

// slowWebhook registers a webhook that allows every eviction, after a while.
func (f *exodus) slowWebhook() {
	f.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(webhookDelay):
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	f.Cleanup(server.Close)
	fail, none, seconds := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(10)
	_, err := f.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(f.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "slow.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
			FailurePolicy:           &fail,
			SideEffects:             &none,
			TimeoutSeconds:          &seconds,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	must(f.B, err)
}
