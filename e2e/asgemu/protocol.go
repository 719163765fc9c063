package asgemu

import (
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// service is one of the two services, by its name in a signature's scope.
type service string

const (
	autoScaling service = "autoscaling"
	ec2         service = "ec2"
)

// versions are those of the APIs; they show which service a request is for.
var versions = map[string]service{"2011-01-01": autoScaling, "2016-11-15": ec2}

// action answers one call.
type action struct {
	service service
	list    string // the parameter that lists instances or groups
	handle  func(*Server, url.Values, []string) (any, *apiError)
}

var actions = map[string]action{
	"DescribeAutoScalingInstances":   {autoScaling, "InstanceIds.member.", (*Server).describeInstances},
	"DescribeAutoScalingGroups":      {autoScaling, "AutoScalingGroupNames.member.", (*Server).describeGroups},
	"DetachInstances":                {autoScaling, "InstanceIds.member.", (*Server).detachInstances},
	"DescribeLifecycleHooks":         {autoScaling, "LifecycleHookNames.member.", (*Server).describeLifecycleHooks},
	"CompleteLifecycleAction":        {autoScaling, "", (*Server).completeLifecycleAction},
	"RecordLifecycleActionHeartbeat": {autoScaling, "", (*Server).recordLifecycleActionHeartbeat},
	"TerminateInstances":             {ec2, "InstanceId.", (*Server).terminateInstances},
}

// ServeHTTP answers as the services do. It is exported so that a Server is an http.Handler; clients go through URL.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.Header().Set("X-Amzn-Requestid", requestID())
	r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	if err := r.ParseForm(); err != nil {
		(&apiError{http.StatusBadRequest, "MalformedQueryString", err.Error()}).write(w, autoScaling)
		return
	}
	name := r.PostForm.Get("Action")
	svc := versions[r.PostForm.Get("Version")]
	act, known := actions[name]
	if r.Method != http.MethodPost || !known || act.service != svc {
		(&apiError{http.StatusBadRequest, "InvalidAction", "Could not find operation " + name + " for version " + r.PostForm.Get("Version")}).write(w, svc)
		return
	}
	if !signedFor(svc, r.Header.Get("Authorization")) {
		code := "MissingAuthenticationToken"
		if svc == ec2 {
			code = "AuthFailure"
		}
		(&apiError{http.StatusForbidden, code, "The request is not signed for " + string(svc)}).write(w, svc)
		return
	}
	named := list(r.PostForm, act.list)
	s.mu.Lock()
	s.largest[name] = max(s.largest[name], len(named))
	s.mu.Unlock()
	s.Serve(w, r, name, named, func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		output, err := act.handle(s, r.PostForm, named)
		switch {
		case err != nil:
			err.write(w, svc)
		case svc == autoScaling:
			encode(w, response(name, output))
		default:
			encode(w, output)
		}
	})
}

const namespace = "http://autoscaling.amazonaws.com/doc/2011-01-01/"

// response is what Auto Scaling answers to an action: the result under the action's name, and the request's id.
func response(action string, result any) any {
	type metadata struct {
		RequestID string `xml:"RequestId"`
	}
	return struct {
		XMLName  xml.Name
		Result   element
		Metadata metadata `xml:"ResponseMetadata"`
	}{
		XMLName:  xml.Name{Space: namespace, Local: action + "Response"},
		Result:   element{action + "Result", result},
		Metadata: metadata{requestID()},
	}
}

// element is a value as an element of that name.
type element struct {
	name  string
	value any
}

func (l element) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	return e.EncodeElement(l.value, xml.StartElement{Name: xml.Name{Local: l.name}})
}

// signedFor checks the scope of a signature, not the signature.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-authentication-methods.html
func signedFor(svc service, authorization string) bool {
	rest, ok := strings.CutPrefix(authorization, "AWS4-HMAC-SHA256 Credential=")
	credential, _, _ := strings.Cut(rest, ",")
	scope := strings.Split(strings.TrimSpace(credential), "/")
	return ok && len(scope) == 5 && scope[3] == string(svc) && scope[4] == "aws4_request"
}

// list reads the values of a list parameter, such as InstanceIds.member.1 and so on.
func list(form url.Values, prefix string) []string {
	var values []string
	if prefix == "" {
		return nil
	}
	for n := 1; ; n++ {
		v, ok := form[prefix+strconv.Itoa(n)]
		if !ok {
			return values
		}
		values = append(values, v...)
	}
}

func encode(w io.Writer, body any) {
	_, _ = io.WriteString(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(body)
}

func requestID() string { return string(uuid.NewUUID()) }
