create unlogged table region (
    r_regionkey bigint not null, r_name varchar(25) not null, r_comment varchar(152) not null
);
create unlogged table nation (
    n_nationkey bigint not null, n_name varchar(25) not null, n_regionkey bigint not null,
    n_comment varchar(152) not null
);
create unlogged table supplier (
    s_suppkey bigint not null, s_name varchar(25) not null, s_address varchar(40) not null,
    s_nationkey bigint not null, s_phone varchar(15) not null, s_acctbal numeric(15,2) not null,
    s_comment varchar(101) not null
);
create unlogged table customer (
    c_custkey bigint not null, c_name varchar(25) not null, c_address varchar(40) not null,
    c_nationkey bigint not null, c_phone varchar(15) not null, c_acctbal numeric(15,2) not null,
    c_mktsegment varchar(10) not null, c_comment varchar(117) not null
);
create unlogged table part (
    p_partkey bigint not null, p_name varchar(55) not null, p_mfgr varchar(25) not null,
    p_brand varchar(10) not null, p_type varchar(25) not null, p_size integer not null,
    p_container varchar(10) not null, p_retailprice numeric(15,2) not null, p_comment varchar(23) not null
);
create unlogged table partsupp (
    ps_partkey bigint not null, ps_suppkey bigint not null, ps_availqty integer not null,
    ps_supplycost numeric(15,2) not null, ps_comment varchar(199) not null
);
create unlogged table orders (
    o_orderkey bigint not null, o_custkey bigint not null, o_orderstatus varchar(1) not null,
    o_totalprice numeric(15,2) not null, o_orderdate date not null, o_orderpriority varchar(15) not null,
    o_clerk varchar(15) not null, o_shippriority integer not null, o_comment varchar(79) not null
);
create unlogged table lineitem (
    l_orderkey bigint not null, l_partkey bigint not null, l_suppkey bigint not null,
    l_linenumber integer not null, l_quantity numeric(15,2) not null,
    l_extendedprice numeric(15,2) not null, l_discount numeric(15,2) not null,
    l_tax numeric(15,2) not null, l_returnflag varchar(1) not null, l_linestatus varchar(1) not null,
    l_shipdate date not null, l_commitdate date not null, l_receiptdate date not null,
    l_shipinstruct varchar(25) not null, l_shipmode varchar(10) not null, l_comment varchar(44) not null
);
