import java.sql.*;
import java.util.*;

/**
 * PostgreSQL's JDBC driver, against a node.
 *
 * java -cp postgresql.jar PostgresJdbc.java HOST PORT TOKEN [TABLE]
 *
 * TABLE is a table of the node, by default the first one that the driver finds. TOKEN may be empty. Prints a line for each
 * check, and ends with 1 if one has failed.
 */
public class PostgresJdbc {
    static int failures = 0;

    interface Check {
        Object run() throws Exception;
    }

    static void check(String name, Check check) {
        try {
            Object result = check.run();
            System.out.println("ok      " + name + (result == null ? "" : ": " + result));
        } catch (Throwable error) {
            failures++;
            System.out.println("FAILED  " + name + ": " + error);
            error.printStackTrace();
        }
    }

    static void equal(Object found, Object expected) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }

    static int count(ResultSet rows) throws SQLException {
        int count = 0;
        while (rows.next()) {
            count++;
        }
        rows.close();
        return count;
    }

    static String sqlState(Connection connection, String sql) {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
            return "no error";
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }

    public static void main(String[] args) throws Exception {
        String url = "jdbc:postgresql://" + args[0] + ":" + args[1] + "/lightship";
        Connection connection = DriverManager.getConnection(url, "me", args[2]);
        DatabaseMetaData metadata = connection.getMetaData();
        String[] table = {args.length > 3 ? args[3] : null};
        check("tables", () -> {
            ResultSet rows = metadata.getTables(null, "public", "%", new String[] {"TABLE"});
            List<String> names = new ArrayList<>();
            while (rows.next()) {
                names.add(rows.getString("TABLE_NAME"));
            }
            if (table[0] == null) {
                table[0] = names.get(0);
            }
            equal(names.contains(table[0]), true);
            equal(count(metadata.getTables(null, null, "no_such_table", null)), 0);
            return names;
        });
        String name = table[0];
        Statement all = connection.createStatement();
        ResultSet counted = all.executeQuery("select count(*) from " + name);
        counted.next();
        int total = counted.getInt(1);
        check("columns", () -> {
            ResultSet rows = metadata.getColumns(null, "public", name, null);
            List<String> columns = new ArrayList<>();
            while (rows.next()) {
                columns.add(rows.getString("COLUMN_NAME") + " " + rows.getString("TYPE_NAME") + " " + rows.getInt("DATA_TYPE"));
            }
            ResultSetMetaData described = connection.createStatement().executeQuery("select * from " + name + " limit 1").getMetaData();
            equal(columns.size(), described.getColumnCount());
            described.getColumnTypeName(1);
            described.isNullable(1);
            described.isAutoIncrement(1);
            return columns;
        });
        check("metadata", () -> {
            equal(count(metadata.getPrimaryKeys(null, "public", name)), 0);
            equal(count(metadata.getIndexInfo(null, "public", name, false, true)), 0);
            equal(count(metadata.getImportedKeys(null, "public", name)), 0);
            equal(count(metadata.getExportedKeys(null, "public", name)), 0);
            equal(count(metadata.getBestRowIdentifier(null, "public", name, 2, true)), 0);
            equal(count(metadata.getFunctions(null, null, "%")), 0);
            equal(count(metadata.getProcedures(null, null, "%")), 0);
            equal(count(metadata.getSchemas()) >= 3, true);
            equal(count(metadata.getCatalogs()), 1);
            equal(count(metadata.getTypeInfo()) > 50, true);
            count(metadata.getTableTypes());
            count(metadata.getTablePrivileges(null, "public", name));
            count(metadata.getUDTs(null, null, "%", null));
            metadata.getSQLKeywords();
            return metadata.getDatabaseProductVersion() + ", " + metadata.getMaxColumnNameLength();
        });
        check("rows in parts", () -> {
            connection.setAutoCommit(false);
            Statement statement = connection.createStatement();
            statement.setFetchSize(7);
            equal(count(statement.executeQuery("select * from " + name)), total);
            connection.commit();
            connection.setAutoCommit(true);
            return total;
        });
        check("parameters", () -> {
            PreparedStatement statement = connection.prepareStatement("select cast(? as bigint) + 1");
            // From the fifth time on, the driver uses a named statement and binary values.
            for (int number = 0; number < 10; number++) {
                statement.setLong(1, number);
                ResultSet rows = statement.executeQuery();
                rows.next();
                equal(rows.getLong(1), number + 1L);
            }
            statement.setNull(1, Types.BIGINT);
            ResultSet rows = statement.executeQuery();
            rows.next();
            equal(rows.getObject(1), null);
            equal(statement.getParameterMetaData().getParameterCount(), 1);
            PreparedStatement text = connection.prepareStatement("select cast(? as text)");
            text.setString(1, "it's ä");
            rows = text.executeQuery();
            rows.next();
            equal(rows.getString(1), "it's ä");
            return null;
        });
        check("transactions and errors", () -> {
            equal(sqlState(connection, "select * from no_such_table"), "42P01");
            equal(sqlState(connection, "copy " + name + " from stdin"), "0A000");
            connection.setAutoCommit(false);
            equal(sqlState(connection, "select * from no_such_table"), "42P01");
            equal(sqlState(connection, "select 1"), "25P02");
            connection.rollback();
            equal(sqlState(connection, "select 1"), "no error");
            connection.rollback();
            connection.setReadOnly(true);
            connection.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
            equal(sqlState(connection, "select 1"), "no error");
            connection.commit();
            connection.setAutoCommit(true);
            connection.setSchema("public");
            equal(connection.getSchema(), "public");
            equal(connection.isValid(5), true);
            return null;
        });
        check("COPY", () -> {
            var copy = connection.unwrap(org.postgresql.PGConnection.class).getCopyAPI();
            var out = new java.io.StringWriter();
            equal(copy.copyOut("COPY (select * from " + name + ") TO STDOUT (FORMAT csv)", out), (long) total);
            return out.getBuffer().length();
        });
        connection.close();
        System.exit(failures > 0 ? 1 : 0);
    }
}
