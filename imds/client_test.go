package imds

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// A short answer must not become a large one here, nor lead somewhere else.
func TestWhatTheClientAsks(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s at another address", r.Method, r.URL)
	}))
	defer other.Close()
	gets := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "" {
			t.Errorf("%s %s accepts encoding %q, want none", r.Method, r.URL.Path, got)
		}
		if r.URL.Path == tokenPath {
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			_, _ = w.Write([]byte("token"))
			return
		}
		gets++
		if got := r.Header.Get("X-Aws-Ec2-Metadata-Token"); got != "token" {
			t.Errorf("token %q", got)
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer s.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	_, err := NewClient(aws.Config{}).GetMetadata(t.Context(), &imds.GetMetadataInput{Path: "instance-id"})
	if err == nil || gets != 1 {
		t.Errorf("error %v after %d requests, want the redirect for an error, and no second try", err, gets)
	}
}
