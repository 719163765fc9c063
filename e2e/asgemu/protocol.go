package asgemu

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
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
	"DescribeAutoScalingInstances":        {autoScaling, "InstanceIds.member.", (*Server).describeInstances},
	"DescribeAutoScalingGroups":           {autoScaling, "AutoScalingGroupNames.member.", (*Server).describeGroups},
	"DetachInstances":                     {autoScaling, "InstanceIds.member.", (*Server).detachInstances},
	"TerminateInstanceInAutoScalingGroup": {autoScaling, "", (*Server).terminateInGroup},
	"PutLifecycleHook":                    {autoScaling, "", (*Server).putLifecycleHook},
	"DescribeLifecycleHooks":              {autoScaling, "LifecycleHookNames.member.", (*Server).describeLifecycleHooks},
	"CompleteLifecycleAction":             {autoScaling, "", (*Server).completeLifecycleAction},
	"RecordLifecycleActionHeartbeat":      {autoScaling, "", (*Server).recordLifecycleActionHeartbeat},
	"TerminateInstances":                  {ec2, "InstanceId.", (*Server).terminateInstances},
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
	output, err := s.answer(name, act, r.PostForm)
	if err != nil {
		err.write(w, svc)
		return
	}
	encode(w, output)
}

func (s *Server) answer(name string, act action, form url.Values) (any, *apiError) {
	named := list(form, act.list)
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := s.count(name, named)
	if fault != nil && !fault.LoseReply {
		return nil, fault.answer(act.service, name)
	}
	output, err := act.handle(s, form, named)
	if fault != nil {
		return nil, fault.answer(act.service, name)
	}
	return output, err
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

func contains(list []string, s string) bool { return slices.Contains(list, s) }

func encode(w io.Writer, body any) {
	_, _ = io.WriteString(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(body)
}

func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
