package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// What net/http does last with a request's body is to see that no more comes. An answer that
// has begun by then is not lost, though the SDK has closed the body.
func TestAnswerBeforeTheBodyHasEnded(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-west-1"} {
		t.Setenv(name, value)
	}
	conf, err := configOf(t.Context(), settings{mode: modeQueue})
	if err != nil {
		t.Fatal(err)
	}
	var sent *http.Request
	conf.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
		sent = r
		body, err := io.ReadAll(io.LimitReader(r.Body, r.ContentLength))
		if err != nil || !strings.Contains(string(body), "https://queue") {
			t.Errorf("body %q, %v", body, err)
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})
	if _, err := sqs.NewFromConfig(conf).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: aws.String("https://queue")}); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, sent.Body); n != 0 || err != nil {
		t.Errorf("the rest of the body is %d bytes, %v; want that it has ended", n, err)
	}
}

// The SDK must not retry: the callers do, and decide how often.
func TestTheSDKTriesNothingAgain(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-west-1", "AWS_MAX_ATTEMPTS": "5"} {
		t.Setenv(name, value)
	}
	conf, err := configOf(t.Context(), settings{mode: modeQueue})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	conf.HTTPClient = doer(func(*http.Request) (*http.Response, error) {
		sent++
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: http.NoBody}, nil
	})
	_, errInstances := ec2.NewFromConfig(conf).TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{"i-0"}})
	_, errGroups := autoscaling.NewFromConfig(conf).DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{})
	_, errReceive := sqs.NewFromConfig(conf).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: aws.String("https://queue")})
	if errInstances == nil || errGroups == nil || errReceive == nil || sent != 3 {
		t.Errorf("%d requests for three calls that fail: %v, %v, %v", sent, errInstances, errGroups, errReceive)
	}
}

func TestRegionOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://sqs.eu-west-1.amazonaws.com/123456789012/q":  "eu-west-1",
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789/q": "cn-north-1",
		"http://127.0.0.1:9324/000000000000/q":                "",
		"https://queue.example.com/q":                         "",
		"::":                                                  "",
	} {
		if got := regionOf(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
