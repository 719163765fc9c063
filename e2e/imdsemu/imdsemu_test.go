package imdsemu_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	awsimds "github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/google/go-cmp/cmp"

	"spot-handler/e2e/imdsemu"
)

// start returns a server and the real SDK's client of it, which tries everything once and never falls back to IMDSv1.
func start(t *testing.T, o imdsemu.Options) (*imdsemu.Server, *awsimds.Client) {
	t.Helper()
	s := imdsemu.Start(o)
	t.Cleanup(s.Close)
	off := false
	return s, awsimds.New(awsimds.Options{
		Endpoint: s.URL, EnableFallback: awsBool(off), HTTPClient: &http.Client{Transport: &http.Transport{}},
	}, func(o *awsimds.Options) { o.Retryer = once{} })
}

func get(t *testing.T, c *awsimds.Client, path string) (string, error) {
	t.Helper()
	out, err := c.GetMetadata(t.Context(), &awsimds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	defer out.Content.Close()
	body, err := io.ReadAll(out.Content)
	return string(body), err
}
