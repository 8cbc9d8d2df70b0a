"""Who is alive and who holds which block, kept in Redis as a hint.

    worker --> WorkerAnnouncer --register, renew, publish, remove--> Redis
    router --> WorkerDirectory <--------- live workers ------------- Redis
    router --> PrefixIndex     <--- leading blocks per worker ------ Redis

Redis may be slow, empty, lying or gone: a request then loses speed and nothing else. Only this
package imports redis.
"""
