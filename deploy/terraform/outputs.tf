output "queue_url" {
  description = "For --queue-url."
  value       = aws_sqs_queue.queue.url
}

output "queue_arn" {
  description = "The queue."
  value       = aws_sqs_queue.queue.arn
}

output "dead_letter_queue_url" {
  description = "Look here for messages that could not be read or delivered."
  value       = aws_sqs_queue.dead_letters.url
}

output "role_arn" {
  description = "For the annotation eks.amazonaws.com/role-arn of the ServiceAccount with credentials = \"irsa\"; EKS Pod Identity needs no annotation. Null with credentials = \"none\"."
  value       = one(aws_iam_role.queue[*].arn)
}

output "policy_arn" {
  description = "The policy for reading the queue, to attach elsewhere."
  value       = aws_iam_policy.queue.arn
}
