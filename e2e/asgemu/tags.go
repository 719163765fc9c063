package asgemu

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html and errors-overview.html
const (
	filterValues = 200 // of all filters of a call
	tagPage      = 1000
	minTagPage   = 5
)

// Tag puts a tag on an instance. The instance need not exist otherwise.
func (s *Server) Tag(id, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tags[id] == nil {
		s.tags[id] = map[string]string{}
	}
	s.tags[id][key] = value
}

// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html
func (s *Server) createTags(form url.Values, ids []string) (any, *apiError) {
	for _, id := range ids {
		if s.instances[id] == nil {
			return nil, &apiError{http.StatusBadRequest, "InvalidID", fmt.Sprintf("The ID '%s' is not valid", id)}
		}
	}
	for _, id := range ids {
		if s.tags[id] == nil {
			s.tags[id] = map[string]string{}
		}
		for n := 1; form.Has("Tag." + strconv.Itoa(n) + ".Key"); n++ {
			tag := "Tag." + strconv.Itoa(n)
			s.tags[id][form.Get(tag+".Key")] = form.Get(tag + ".Value")
		}
	}
	return struct {
		XMLName   xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ CreateTagsResponse"`
		RequestID string   `xml:"requestId"`
		Return    bool     `xml:"return"`
	}{RequestID: requestID(), Return: true}, nil
}

type tagItem struct {
	ResourceID   string `xml:"resourceId"`
	ResourceType string `xml:"resourceType"`
	Key          string `xml:"key"`
	Value        string `xml:"value"`
}

func (s *Server) describeTags(form url.Values, _ []string) (any, *apiError) {
	filters, total := map[string][]string{}, 0
	for n := 1; form.Has("Filter." + strconv.Itoa(n) + ".Name"); n++ {
		name, values := form.Get("Filter."+strconv.Itoa(n)+".Name"), list(form, "Filter."+strconv.Itoa(n)+".Value.")
		if !slices.Contains([]string{"resource-id", "resource-type", "key", "value"}, name) {
			return nil, &apiError{http.StatusBadRequest, "InvalidParameterValue", fmt.Sprintf("The filter '%s' is invalid", name)}
		}
		filters[name] = append(filters[name], values...)
		total += len(values)
	}
	if total > filterValues {
		return nil, &apiError{http.StatusBadRequest, "FilterLimitExceeded",
			fmt.Sprintf("The maximum number of filter values specified on a single call is %d", filterValues)}
	}
	var found []tagItem
	for id, tags := range s.tags {
		for key, value := range tags {
			t := tagItem{id, "instance", key, value}
			if matches(filters["resource-id"], id) && matches(filters["resource-type"], t.ResourceType) &&
				matches(filters["key"], key) && matches(filters["value"], value) {
				found = append(found, t)
			}
		}
	}
	slices.SortFunc(found, func(a, b tagItem) int {
		return cmp.Or(cmp.Compare(a.ResourceID, b.ResourceID), cmp.Compare(a.Key, b.Key))
	})
	from, to, next, err := tagPages(form, len(found))
	if err != nil {
		return nil, err
	}
	return struct {
		XMLName   xml.Name  `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeTagsResponse"`
		RequestID string    `xml:"requestId"`
		Tags      []tagItem `xml:"tagSet>item"`
		Next      string    `xml:"nextToken,omitempty"`
	}{RequestID: requestID(), Tags: found[from:to], Next: next}, nil
}

func tagPages(form url.Values, n int) (from, to int, next string, err *apiError) {
	size := n // a call that gives no number has no pages
	if text := form.Get("MaxResults"); text != "" {
		asked, bad := strconv.Atoi(text)
		if bad != nil || asked < minTagPage {
			return 0, 0, "", &apiError{http.StatusBadRequest, "InvalidParameterValue",
				fmt.Sprintf("Value ( %s ) for parameter maxResults is invalid. Expecting a value greater than %d.", text, minTagPage)}
		}
		size = min(asked, tagPage)
	}
	if token := form.Get("NextToken"); token != "" {
		var bad error
		if from, bad = strconv.Atoi(token); bad != nil || from < 0 || from > n {
			return 0, 0, "", &apiError{http.StatusBadRequest, "InvalidNextToken", "The token is not valid"}
		}
	}
	if to = min(n, from+size); to < n {
		next = strconv.Itoa(to)
	}
	return from, to, next, nil
}

// matches reports whether the text matches one of the filter's values; a filter without values matches everything.
// * and ? are wildcards, unless a backslash precedes them.
func matches(values []string, text string) bool {
	if len(values) == 0 {
		return true
	}
	// path.Match knows the same wildcards, and three more special characters, which mean nothing here.
	plain := strings.NewReplacer("[", `\[`, "/", "\x00")
	text = strings.ReplaceAll(text, "/", "\x00") // so that * does not stop there
	return slices.ContainsFunc(values, func(v string) bool {
		ok, err := path.Match(plain.Replace(v), text)
		return err == nil && ok
	})
}
