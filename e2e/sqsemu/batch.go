package sqsemu

import "regexp"

// maxBatch is the most entries that a batch can have, and the most messages that one receive returns.
const maxBatch = 10

var batchEntryID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// batchFailure is what is wrong with one entry; the others of its batch go through.
type batchFailure struct {
	Id, Code, Message string
	SenderFault       bool
}

type batchOutput[Success any] struct {
	Successful []Success
	Failed     []batchFailure `json:",omitempty"`
}

type idOutput struct{ Id string }

// batch runs f on every entry, after the checks that refuse a batch as a whole.
func batch[Entry, Success any](entries []Entry, id func(*Entry) string, f func(*Entry) (Success, *apiError)) (any, *apiError) {
	if err := checkBatch(entries, id); err != nil {
		return nil, err
	}
	out := batchOutput[Success]{Successful: []Success{}}
	for i := range entries {
		e := &entries[i]
		success, err := f(e)
		if err != nil {
			out.Failed = append(out.Failed, batchFailure{Id: id(e), Code: err.code(), Message: err.message, SenderFault: true})
			continue
		}
		out.Successful = append(out.Successful, success)
	}
	return out, nil
}

func checkBatch[Entry any](entries []Entry, id func(*Entry) string) *apiError {
	switch {
	case len(entries) == 0:
		return modeled("EmptyBatchRequest", "There should be at least one entry in the request.")
	case len(entries) > maxBatch:
		return modeled("TooManyEntriesInBatchRequest", "Maximum number of entries per request are %d. You have sent %d.", maxBatch, len(entries))
	}
	seen := map[string]bool{}
	for i := range entries {
		name := id(&entries[i])
		if !batchEntryID.MatchString(name) {
			return modeled("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")
		}
		if seen[name] {
			return modeled("BatchEntryIdsNotDistinct", "Id %s repeated", name)
		}
		seen[name] = true
	}
	return nil
}
