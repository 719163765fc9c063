package narrow

// fields are the members of a JSON object that are kept; a key that ends with a slash stands
// for all that begin with it. A member whose own fields are nil is kept whole. An array's are those of its elements.
type fields map[string]fields

// kind is what is kept of the objects of one resource.
type kind struct {
	root fields
	// field and object bound, in bytes, what is kept of one field of metadata, spec or status,
	// and of all the fields of one object.
	field, object int
}

// Bounds. A pod of twenty containers with affinity, spread and forty labels keeps 6 KiB; of other
// objects less is used. A Go value is up to thirty times as long as the text. What few people may
// write, such as Nodes, can be longer.
const (
	podField, podBound         = 8 << 10, 16 << 10
	fieldBound, objectBound    = 4 << 10, 8 << 10
	trustedField, trustedBound = 32 << 10, 64 << 10
)

// kinds are the resources whose objects are narrowed, by group and plural: all that the daemon
// reads and that may be large. Those that are not listed pass as they are, among them NodePools,
// whose templates are copied, and leases, which are written back.
var kinds = map[string]kind{
	"pods": {object(fields{
		"spec":   podSpec,
		"status": {"phase": nil, "startTime": nil, "podIP": nil, "conditions": conditions},
	}), podField, podBound},
	"nodes": {object(fields{
		"spec":   nil,
		"status": {"capacity": nil, "allocatable": nil, "conditions": nil, "nodeInfo": nil, "addresses": nil},
	}), trustedField, trustedBound},
	"namespaces":             {object(nil), fieldBound, objectBound},
	"persistentvolumeclaims": {object(fields{"spec": {"accessModes": nil, "volumeName": nil}}), fieldBound, objectBound},
	"resourcequotas": {object(fields{
		"spec":   {"scopes": nil, "scopeSelector": nil},
		"status": {"hard": nil, "used": nil},
	}), fieldBound, objectBound},
	"apps/deployments": {object(fields{
		"spec":   {"replicas": nil, "paused": nil, "minReadySeconds": nil, "selector": nil, "strategy": nil},
		"status": {"observedGeneration": nil, "replicas": nil, "updatedReplicas": nil, "conditions": {"type": nil, "status": nil, "message": nil}},
	}), fieldBound, objectBound},
	"apps/replicasets":  {object(fields{"spec": {"replicas": nil, "selector": nil}}), fieldBound, objectBound},
	"apps/statefulsets": {object(fields{"spec": {"replicas": nil, "selector": nil}}), fieldBound, objectBound},
	"apps/daemonsets": {object(fields{
		"spec": {"selector": nil, "template": {"metadata": metadata, "spec": podSpec}},
	}), fieldBound, objectBound},
	"policy/poddisruptionbudgets": {object(fields{
		"spec":   nil,
		"status": {"observedGeneration": nil, "disruptionsAllowed": nil, "currentHealthy": nil, "desiredHealthy": nil, "expectedPods": nil, "disruptedPods": nil},
	}), podField, podBound}, // disruptedPods has an entry for each pod whose eviction was granted of late
	"storage.k8s.io/volumeattachments": {object(fields{
		"spec": {"nodeName": nil, "source": {"persistentVolumeName": nil}},
	}), fieldBound, objectBound},
	"karpenter.sh/nodeclaims": {object(fields{"spec": nil, "status": nil}), trustedField / 2, trustedBound / 2},
}

// object adds to an object's own fields what all objects, their lists and the events of a watch
// have, and those of a Status, which stands in a watch in place of an object.
func object(own fields) fields {
	root := fields{
		"kind": nil, "apiVersion": nil, "metadata": metadata,
		"type": nil, "message": nil, "reason": nil, "code": nil, "details": nil, "status": {},
	}
	for name, of := range own {
		root[name] = of
	}
	root["items"], root["object"] = root, root
	return root
}

var metadata = fields{
	"name": nil, "generateName": nil, "namespace": nil, "uid": nil, "resourceVersion": nil, "generation": nil,
	"creationTimestamp": nil, "deletionTimestamp": nil, "deletionGracePeriodSeconds": nil,
	"labels": nil, "ownerReferences": nil, "finalizers": nil,
	"annotations": {
		"spot-handler/": nil, "karpenter.sh/": nil, "cluster-autoscaler.kubernetes.io/": nil,
		"kubernetes.io/config.mirror": nil, "k8s.io/initial-events-end": nil,
	},
	"continue": nil, "remainingItemCount": nil, // of a list
}

var conditions = fields{"type": nil, "status": nil, "reason": nil, "lastTransitionTime": nil}

var podSpec = fields{
	"nodeName": nil, "terminationGracePeriodSeconds": nil, "nodeSelector": nil, "affinity": nil,
	"topologySpreadConstraints": nil, "tolerations": nil, "overhead": nil, "resources": nil,
	"hostNetwork": nil, "schedulerName": nil, "schedulingGroup": nil, "resourceClaims": nil,
	"priority": nil, "priorityClassName": nil,
	"containers": containers, "initContainers": containers,
	"volumes": {
		"name": nil, "persistentVolumeClaim": nil, "ephemeral": {},
		"awsElasticBlockStore": {}, "gcePersistentDisk": {}, "azureDisk": {}, "cinder": {},
		"vsphereVolume": {}, "iscsi": {}, "fc": {}, "rbd": {},
	},
}

var containers = fields{
	"name": nil, "resources": nil, "restartPolicy": nil,
	"ports": nil,
}

// of is what is kept of the member, or false.
func (f fields) of(name []byte) (fields, bool) {
	if f == nil {
		return nil, true
	}
	if of, ok := f[string(name)]; ok {
		return of, true
	}
	for i, c := range name {
		if c == '/' {
			of, ok := f[string(name[:i+1])]
			return of, ok
		}
	}
	return nil, false
}
