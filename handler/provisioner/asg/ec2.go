package asg

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"

	"spot-handler/handler/awsfault"
)

// EC2 calls the two actions of EC2 that the daemon needs. AWS's own package for EC2 would
// add 0.8 MiB of resident memory to every process, also where it is never called, and a
// minute and a half to the build. Credentials and the signature are the SDK's.
type EC2 struct {
	config   aws.Config
	endpoint string
	signer   *v4.Signer
	client   aws.HTTPClient
}

// NewEC2 returns a client for the configuration's region. AWS_ENDPOINT_URL_EC2 and
// AWS_ENDPOINT_URL name another endpoint, as everywhere in the SDK.
func NewEC2(ctx context.Context, config aws.Config, getenv func(string) string) (*EC2, error) {
	endpoint := getenv("AWS_ENDPOINT_URL_EC2")
	if endpoint == "" {
		endpoint = getenv("AWS_ENDPOINT_URL")
	}
	if endpoint == "" {
		// The SDK knows the domain of every partition; the services differ in their name.
		resolved, err := autoscaling.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, autoscaling.EndpointParameters{
			Region: aws.String(config.Region), UseDualStack: aws.Bool(false), UseFIPS: aws.Bool(false),
		})
		if err != nil {
			return nil, fmt.Errorf("find endpoint of EC2: %w", err)
		}
		resolved.URI.Host = "ec2." + strings.TrimPrefix(resolved.URI.Host, "autoscaling.")
		endpoint = resolved.URI.String()
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" {
		return nil, fmt.Errorf("find endpoint of EC2: %q is no URL", endpoint)
	}
	c := &EC2{config: config, endpoint: endpoint, signer: v4.NewSigner(), client: config.HTTPClient}
	if c.client == nil {
		c.client = &http.Client{}
	}
	return c, nil
}

// ec2Version is the version of the API.
const ec2Version = "2016-11-15"

// TerminateInstances ends the instances, all or none. Those that have ended are no
// error. Errors of the service are smithy.APIError.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
func (c *EC2) TerminateInstances(ctx context.Context, ids []string) error {
	form := url.Values{"Action": {"TerminateInstances"}}
	for i, id := range ids {
		form.Set("InstanceId."+strconv.Itoa(i+1), id)
	}
	_, err := c.call(ctx, form)
	return err
}

// wildcards are what the value of a filter means something else by than itself.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
var wildcards = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)

// maxPages bounds the pages of one DescribeTags: an instance has one tag of a key, so that
// the first holds them all.
const maxPages = 20

// InstanceTags returns the value of the tag for each of the instances that has it; one
// that is not there has none. Errors of the service are smithy.APIError. A call can name
// 199 instances at most.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html
func (c *EC2) InstanceTags(ctx context.Context, key string, ids []string) (map[string]string, error) {
	form := url.Values{
		"Action": {"DescribeTags"}, "MaxResults": {"1000"},
		"Filter.1.Name": {"resource-id"}, "Filter.2.Name": {"key"}, "Filter.2.Value.1": {wildcards.Replace(key)},
	}
	for i, id := range ids {
		form.Set("Filter.1.Value."+strconv.Itoa(i+1), id)
	}
	tags := map[string]string{}
	for range maxPages {
		text, err := c.call(ctx, form)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tags []struct {
				ID    string `xml:"resourceId"`
				Key   string `xml:"key"`
				Value string `xml:"value"`
			} `xml:"tagSet>item"`
			Next string `xml:"nextToken"`
		}
		if err := xml.Unmarshal(text, &page); err != nil {
			return nil, fmt.Errorf("parse tags: %w", err)
		}
		for _, t := range page.Tags {
			if t.Key == key {
				tags[t.ID] = t.Value
			}
		}
		if page.Next == "" {
			return tags, nil
		}
		form.Set("NextToken", page.Next)
	}
	return nil, fmt.Errorf("read tags of %d instances: more than %d pages", len(ids), maxPages)
}

// call makes one call and returns the answer.
func (c *EC2) call(ctx context.Context, form url.Values) ([]byte, error) {
	form.Set("Version", ec2Version)
	body := []byte(form.Encode())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.config.Credentials == nil {
		return nil, &awsfault.CredentialError{Err: errors.New("none are configured")}
	}
	credentials, err := c.config.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, &awsfault.CredentialError{Err: err}
	}
	sum := sha256.Sum256(body)
	if err := c.signer.SignHTTP(ctx, credentials, req, hex.EncodeToString(sum[:]), "ec2", c.config.Region, time.Now()); err != nil {
		return nil, &awsfault.CredentialError{Err: err}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}
	var failure struct {
		Errors []struct{ Code, Message string } `xml:"Errors>Error"`
	}
	if err := xml.Unmarshal(text, &failure); err != nil || len(failure.Errors) == 0 {
		return nil, &smithy.GenericAPIError{Code: resp.Status, Message: string(text[:min(len(text), 200)])}
	}
	return nil, &smithy.GenericAPIError{Code: failure.Errors[0].Code, Message: failure.Errors[0].Message}
}
