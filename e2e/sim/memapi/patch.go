package memapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

type tree = map[string]any

func decodeTree(text []byte) (tree, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	t := tree{}
	err := decoder.Decode(&t)
	return t, err
}

// apply returns what a patch makes of an object's JSON.
func apply(k *Kind, kind types.PatchType, current, patch []byte) (tree, *Failure) {
	switch kind {
	case types.MergePatchType:
		to, err := decodeTree(current)
		change, errPatch := decodeTree(patch)
		if err != nil || errPatch != nil {
			return nil, badRequest("error decoding patch: %v", errPatch)
		}
		return mergeTrees(to, change), nil
	case types.StrategicMergePatchType:
		merged, err := strategicpatch.StrategicMergePatch(current, patch, k.empty())
		if err != nil {
			return nil, badRequest("%v", err)
		}
		to, err := decodeTree(merged)
		if err != nil {
			return nil, badRequest("%v", err)
		}
		return to, nil
	case types.JSONPatchType:
		to, err := decodeTree(current)
		var operations []operation
		if errPatch := json.Unmarshal(patch, &operations); err != nil || errPatch != nil {
			return nil, badRequest("error decoding patch: %v", errPatch)
		}
		for _, op := range operations {
			if err := op.apply(to); err != nil {
				return nil, invalid("%v", err)
			}
		}
		return to, nil
	}
	return nil, badRequest("unknown patch type %s", kind)
}

// mergeTrees is RFC 7396.
func mergeTrees(to, change tree) tree {
	for key, value := range change {
		switch value := value.(type) {
		case nil:
			delete(to, key)
		case tree:
			child, ok := to[key].(tree)
			if !ok {
				child = tree{}
			}
			to[key] = mergeTrees(child, value)
		default:
			to[key] = value
		}
	}
	return to
}

// operation is one of RFC 6902. Nobody here adds to arrays, or removes from one.
type operation struct {
	Op, Path string
	Value    any
}

func (op operation) apply(to tree) error {
	parts := strings.Split(strings.TrimPrefix(op.Path, "/"), "/")
	for i, part := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	last := len(parts) - 1
	var parent any = to
	for _, part := range parts[:last] {
		child, there := member(parent, part)
		if !there {
			return fmt.Errorf("%s operation does not apply: doc is missing path: %q: missing value", op.Op, op.Path)
		}
		parent = child
	}
	was, there := member(parent, parts[last])
	switch {
	case op.Op == "add":
		return setMember(parent, parts[last], op.Value)
	case op.Op == "test" && !there && op.Value == nil:
	case !there:
		return fmt.Errorf("%s operation does not apply: doc is missing key: %s: missing value", op.Op, op.Path)
	case op.Op == "test" && !reflect.DeepEqual(was, op.Value):
		return fmt.Errorf("testing value %s failed", op.Path)
	case op.Op == "replace":
		return setMember(parent, parts[last], op.Value)
	case op.Op == "remove":
		object, ok := parent.(tree)
		if !ok {
			return fmt.Errorf("remove %s: not a member of an object", op.Path)
		}
		delete(object, parts[last])
	case op.Op != "test":
		return fmt.Errorf("unknown operation %q", op.Op)
	}
	return nil
}

// member is that of an object or an array.
func member(of any, name string) (value any, there bool) {
	switch of := of.(type) {
	case tree:
		value, there = of[name]
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(of) {
			value, there = of[i], true
		}
	}
	return value, there
}

func setMember(of any, name string, value any) error {
	switch of := of.(type) {
	case tree:
		of[name] = value
		return nil
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(of) {
			of[i] = value
			return nil
		}
	}
	return fmt.Errorf("nothing has a member %q to be set", name)
}

func childOf(t tree, key string) tree {
	child, _ := t[key].(tree)
	return child
}

// Patch changes an object as a client's patch does. The lock is held.
func (s *Server) Patch(k *Kind, key string, kind types.PatchType, patch []byte, by string) *Failure {
	c := s.of(k)
	at := c.objects[key]
	if at == nil {
		return notFound(k, key)
	}
	made, f := apply(k, kind, at.json(), patch)
	if f == nil {
		_, f = s.change(c, key, "", made, by)
	}
	return f
}

// isMeant checks the object against the version and UID that a client gave, if any.
func (s *stored) isMeant(k *Kind, version string, uid types.UID) *Failure {
	switch {
	case version != "" && version != s.obj.GetResourceVersion():
		return conflict(k, s.obj.GetName(), "the object has been modified; please apply your changes to the latest version and try again")
	case uid != "" && uid != s.obj.GetUID():
		return invalid("%s %q is invalid: metadata.uid: Invalid value: %q: field is immutable", k.Kind, s.obj.GetName(), uid)
	}
	return nil
}

// change replaces an object by what a client has made of it. If that is what it was, nothing happens.
func (s *Server) change(c *collection, key, subresource string, made tree, by string) (*stored, *Failure) {
	at := c.objects[key]
	was, err := decodeTree(at.json())
	if err != nil {
		return nil, badRequest("%v", err)
	}
	metadata := childOf(made, "metadata")
	version, _ := metadata["resourceVersion"].(string)
	uid, _ := metadata["uid"].(string)
	if f := at.isMeant(c.Kind, version, types.UID(uid)); f != nil {
		return nil, f
	}
	switch {
	case subresource == "status":
		metadata, status := made["metadata"], made["status"]
		made = was
		if c.builtIn() { // the status of others changes alone
			made["metadata"] = metadata
		}
		if made["status"] = status; status == nil {
			delete(made, "status")
		}
	case c.status:
		if made["status"] = was["status"]; was["status"] == nil {
			delete(made, "status")
		}
	}
	if subresource == "status" {
		again, _ := decodeTree(at.json())
		was = again
	}
	if reflect.DeepEqual(was, made) {
		return at, nil
	}
	text, err := json.Marshal(made)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	obj := c.empty()
	if err := json.Unmarshal(text, obj); err != nil {
		return nil, badRequest("%v", err)
	}
	s.Put(c.Kind, obj, by)
	return c.objects[key], nil
}
