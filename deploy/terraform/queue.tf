resource "aws_sqs_queue" "queue" {
  name                      = local.name
  message_retention_seconds = var.message_retention_seconds

  # The daemon sets both with every receive; these are for anybody else who reads.
  visibility_timeout_seconds = 30
  receive_wait_time_seconds  = 20

  # A message that cannot be read comes back every 30 s and leaves after 150 s, within
  # the retention. One about an unknown instance is read twice, which leaves three for
  # processes that are killed while they handle it.
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 5
  })

  sqs_managed_sse_enabled = var.kms_key_arn == null ? true : null
  kms_master_key_id       = var.kms_key_arn
  tags                    = var.tags

  lifecycle {
    precondition {
      condition     = length(local.name) <= 43
      error_message = "The cluster's name is too long to be part of the rules' names: give the variable name a shorter one."
    }
  }
}

# Messages that could not be read, and events that could not be delivered. Only people read
# it, so it keeps them for as long as SQS can.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${local.name}-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = var.kms_key_arn == null ? true : null
  kms_master_key_id         = var.kms_key_arn
  tags                      = var.tags
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.queue.arn]
  })
}

resource "aws_sqs_queue_policy" "queue" {
  for_each = {
    queue        = aws_sqs_queue.queue
    dead_letters = aws_sqs_queue.dead_letters
  }

  queue_url = each.value.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid       = "RulesSend"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = {
          ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.kind : rule.arn] }
        }
      },
      {
        Sid       = "NobodyWithoutTLS"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = each.value.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      ], each.key != "queue" || var.hook_topic_arn == null ? [] : [
      {
        Sid       = "HookTopicSends"
        Effect    = "Allow"
        Principal = { Service = "sns.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = { ArnEquals = { "aws:SourceArn" = [var.hook_topic_arn] } }
      },
      ], each.key != "queue" || !var.deny_other_senders ? [] : [
      # Without it, everybody who may send to any queue of the account could have nodes drained.
      {
        Sid       = "NobodyElseSends"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:SendMessage"
        Resource  = each.value.arn
        Condition = merge(
          { StringNotEquals = { "aws:PrincipalServiceName" = concat(["events.amazonaws.com"], var.hook_topic_arn == null ? [] : ["sns.amazonaws.com"]) } },
          length(var.sender_arns) == 0 ? {} : { ArnNotLike = { "aws:PrincipalArn" = var.sender_arns } },
        )
      },
    ])
  })
}
