package imdsemu

import (
	"crypto/rand"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"

	// maxTokenTTL is the longest lifetime that EC2 gives a token, six hours, in seconds.
	maxTokenTTL = 21600
)

// ServeHTTP answers as the service on an instance does. It is exported so that a Server is an http.Handler; clients go
// through URL.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Serve(w, r, r.URL.Path, nil, s.answer)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "EC2ws")
	w.Header().Set("Content-Type", "text/plain")
	switch {
	case r.URL.Path == TokenPath && r.Method == http.MethodPut:
		s.serveToken(w, r)
	case r.URL.Path != TokenPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		s.serveMetadata(w, r)
	default:
		refuse(w, http.StatusMethodNotAllowed)
	}
}

func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	// EC2 takes the header as the sign of an open proxy that would hand the instance's credentials to strangers.
	if len(r.Header.Values("X-Forwarded-For")) > 0 {
		refuse(w, http.StatusForbidden)
		return
	}
	ttl, err := strconv.Atoi(r.Header.Get(tokenTTLHeader))
	if err != nil || ttl < 1 || ttl > maxTokenTTL {
		refuse(w, http.StatusBadRequest)
		return
	}
	token := s.issueToken(time.Duration(ttl) * time.Second)
	w.Header().Set(tokenTTLHeader, strconv.Itoa(ttl))
	_, _ = io.WriteString(w, token)
}

func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	value, found, left := s.lookUp(r.URL.Path, r.Header.Get(tokenHeader))
	switch {
	case left <= 0:
		refuse(w, http.StatusUnauthorized)
	case !found:
		refuse(w, http.StatusNotFound)
	default:
		w.Header().Set(tokenTTLHeader, strconv.Itoa(int(left.Seconds())))
		_, _ = io.WriteString(w, value)
	}
}

// lookUp returns the value at a path, and how long the token will live; zero or less means that it is not a valid
// token.
func (s *Server) lookUp(path, token string) (value string, found bool, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left = time.Until(s.tokens[token])
	if value, found = s.announced[path]; !found {
		value, found = s.identity[path]
	}
	return value, found, left
}

func (s *Server) issueToken(ttl time.Duration) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for token, expires := range s.tokens {
		if expires.Before(now) {
			delete(s.tokens, token)
		}
	}
	token := rand.Text()
	s.tokens[token] = now.Add(ttl)
	return token
}

// ExpireTokens makes every token that was handed out invalid, as a restart of the service does: the next GET with
// one gets a 401, long before the lifetime that its owner was promised.
func (s *Server) ExpireTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// refuse answers with a small page, as the real service does. A client that does not read it loses its connection.
func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	text := strconv.Itoa(status) + " - " + http.StatusText(status)
	_, _ = io.WriteString(w, "<html><head><title>"+text+"</title></head><body><h1>"+text+"</h1></body></html>\n")
}
