package evidence

import (
	"testing"
	"time"
)

// Lines as the API server writes them, shortened.
const auditText = `{"kind":"Event","level":"RequestResponse","auditID":"chaos~2~3~1700000000000000~7","stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:spot-handler:spot-handler-queue"},"objectRef":{"resource":"pods","namespace":"n","name":"p","subresource":"eviction"},"responseStatus":{"status":"Failure","message":"Cannot evict pod as it would violate the pod's disruption budget.","code":429},"requestObject":{"kind":"Eviction","deleteOptions":{"gracePeriodSeconds":7,"preconditions":{"uid":"u"}}},"requestReceivedTimestamp":"2023-11-14T22:13:20.000100Z","stageTimestamp":"2023-11-14T22:13:20.000200Z"}
{"kind":"Event","auditID":"0b7c","stage":"ResponseComplete","verb":"delete","user":{"username":"karpenter"},"objectRef":{"resource":"pods","namespace":"n","name":"q"},"responseStatus":{"code":200},"requestObject":{"gracePeriodSeconds":1,"preconditions":{"uid":"v"}}}
{"kind":"Event","auditID":"0b7d","stage":"ResponseComplete","verb":"get","user":{"username":"karpenter"},"objectRef":{"resource":"pods","namespace":"n","name":"q"},"responseStatus":{"code":200}}
{"kind":"Event","auditID":"chaos~1~1~1700000000000000~8","stage":"ResponseComplete","verb":"patch","objectRef":{"resource":"nodes","name":"n"},"responseStatus":{"code":200},"requestObject":{"metadata":{"annotations":{"spot-handler/interruption":"{\"kind\":\"spot-interruption\",\"phase\":\"Noticed\",\"instance\":\"i-1\"}"}}}}
{"kind":"Event","auditID":"chaos~1~1~1700000000000000~9","stage":"ResponseComplete","verb":"patch","objectRef":{"resource":"nodes","name":"n"},"responseStatus":{"code":200},"requestObject":[{"op":"test","path":"/metadata/annotations/spot-handler~1interruption","value":"old"},{"op":"replace","path":"/metadata/annotations/spot-handler~1interruption","value":"{\"kind\":\"spot-interruption\",\"phase\":\"Drained\"}"}]}
{"kind":"Event","auditID":"chaos~1~1~1700000000000000~10","stage":"ResponseStarted","verb":"watch","objectRef":{"resource":"nodes"},"responseStatus":{"code":200}}`

func TestAuditLog(t *testing.T) {
	found, err := Requests([]byte(auditText))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 4 {
		t.Fatalf("%d requests, want 4: %+v", len(found), found)
	}
	seven, one := 7*time.Second, time.Second
	refused := found[0]
	if refused.Replica != "2" || refused.Process != "2.3" || !refused.Sent.Equal(time.Unix(1700000000, 0)) || !refused.Budget || refused.UID != "u" || *refused.Grace != seven {
		t.Errorf("eviction %+v", refused)
	}
	if q := found[1]; q.Process != "" || q.User != "karpenter" || q.UID != "v" || *q.Grace != one {
		t.Errorf("deletion %+v", q)
	}
	for i, phase := range map[int]string{2: "Noticed", 3: "Drained"} {
		if q := found[i]; q.Record == nil || string(q.Record.Phase) != phase {
			t.Errorf("patch %+v, want phase %s", q, phase)
		}
	}
}
