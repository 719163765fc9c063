package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
)

// Peer is another Node of a pool, as seen by a process that does not watch it.
type Peer struct {
	Name   string
	Record string // the text of its annotation; empty if it has none
}

// Peers lists the Nodes that a label selector selects. client is the REST client of core/v1.
// Peers transfers only their metadata and decodes them one by one: the answer for a pool of a
// thousand nodes is larger than the memory that the daemon should need. With fresh it returns
// them as stored; otherwise from a cache of the API server, which costs the server little.
func Peers(ctx context.Context, client rest.Interface, selector string, fresh bool) ([]Peer, error) {
	r := client.Get().Resource("nodes").Param("labelSelector", selector).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	if !fresh {
		r = r.Param("resourceVersion", "0")
	}
	body, err := r.Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	defer body.Close()
	peers, err := decodePeers(body)
	if err != nil {
		return nil, fmt.Errorf("read list of nodes: %w", err)
	}
	return peers, nil
}

// decodePeers reads a list of objects and keeps no more of it than it needs.
func decodePeers(body io.Reader) ([]Peer, error) {
	d := json.NewDecoder(body)
	if t, err := d.Token(); err != nil {
		return nil, err
	} else if t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	var peers []Peer
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key != "items" {
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return nil, err
			}
			continue
		}
		if t, err := d.Token(); err != nil {
			return nil, err
		} else if t == nil {
			continue // an empty list may be null
		} else if t != json.Delim('[') {
			return nil, errors.New("items are no list")
		}
		for d.More() {
			var item struct {
				Metadata struct {
					Name        string
					Annotations map[string]string
				}
			}
			if err := d.Decode(&item); err != nil {
				return nil, err
			}
			peers = append(peers, Peer{Name: item.Metadata.Name, Record: item.Metadata.Annotations[interruption.Annotation]})
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil { // the end: an answer that was cut off does not count
		return nil, err
	}
	return peers, nil
}
